"""Kernels for GPUs, our own or from other libraries, next to the plain torch code that defines each of them."""
