"""Steps of several processes, on this machine."""
