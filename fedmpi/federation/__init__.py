"""Who takes part, with which capacity, and who simulates whom: pure functions, never sent."""

from fedmpi.federation.cohort import eligible_clients, learning_rate, sample_cohort, sample_drawn_tiers
from fedmpi.federation.plan import Assignment, Task, assign
from fedmpi.federation.tiers import Tier, equal_blocks, tier_of

__all__ = [
    "Assignment",
    "Task",
    "Tier",
    "assign",
    "eligible_clients",
    "equal_blocks",
    "learning_rate",
    "sample_cohort",
    "sample_drawn_tiers",
    "tier_of",
]
