"""What is known of models, devices, machines, arguments and releases."""
