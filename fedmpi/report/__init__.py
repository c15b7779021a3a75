"""What a run tells people: records, TensorBoard, progress, the closing table."""
