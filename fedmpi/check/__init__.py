"""What a user brings (a method, a model, a data set, a partition), put to the contract checks and the bits checks."""
