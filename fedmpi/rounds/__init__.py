"""One round: its state, its plan, what is published, how a client trains, and the exchange of results."""
