"""What a user brings (a method, model, data set, partition or observer), put to contract checks and bits checks."""
