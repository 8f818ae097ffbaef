"""Where tensors are moved to, and back from: host memory beside a device, or a file; and how fast that is."""
