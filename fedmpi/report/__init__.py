"""What people read: records, TensorBoard, progress, the closing table, and tables of text for a terminal or a file."""
