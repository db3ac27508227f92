"""Installation of cells and nodes on machines: files, certificates, services, checks and their removal."""
