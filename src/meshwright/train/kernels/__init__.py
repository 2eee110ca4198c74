"""What a GPU runs by kernels of our own or of others, beside plain torch that defines each."""
