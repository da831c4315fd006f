"""What is known of models, devices, arguments and releases."""
