"""What server, client and lab share: values, tensors on the wire, errors, models by name."""
