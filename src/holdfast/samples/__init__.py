"""Small programs to run on a platform: real processes with real ports, standard library only, quick to start."""
