"""What a run would take on the clients' own devices: time, memory and energy, as pure functions of plan and profile."""
