"""Other peoples' files: how they come here, how archives are opened, and the formats that they are in."""
