"""gpuhook gives containers the host's NVIDIA GPUs; the version is stated here and nowhere else."""

__version__ = "0.1.0"
