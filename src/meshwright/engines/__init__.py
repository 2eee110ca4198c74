"""Jobs for the engines that run them: Slurm, Kubernetes, ssh, this machine."""
