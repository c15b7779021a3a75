"""One file a partition: its options, and the procedure that divides the training examples among the clients."""
