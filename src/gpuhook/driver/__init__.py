"""What this host has of an NVIDIA driver: its record and the record's key, the NVML helper, libraries, device nodes."""
