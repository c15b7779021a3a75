"""What a run leaves on disk and reads back: checkpoints, client memories, the manifest, the lock."""
