"""One file a data set: options, what is known of it, where its files come from, how they are read or prepared."""
