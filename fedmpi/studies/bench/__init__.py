"""What fedmpi costs beside a bare PyTorch loop, and what pruned nets save."""
