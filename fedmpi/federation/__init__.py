"""Who takes part, with which capacity, and who simulates whom: pure functions, never sent."""
