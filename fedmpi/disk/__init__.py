"""Files as the operating system has them: plain files, temporaries, HDF5. They know nothing of runs or data sets."""
