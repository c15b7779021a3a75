"""What can be done to any net, built in or a user's: read its channels, cut them, nest, scale and join nets."""
