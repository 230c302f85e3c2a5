"""The names of the functions that configure a method; they are made in :mod:`grandrounds.api.methods`."""

CONSTRUCTORS = {
    "FedAlignCL": "fed_align_cl",
    "FedAvg": "fedavg",
    "FedDF": "feddf",
    "FedIRM": "fedirm",
    "FedPerl": "fedperl",
    "Local": "local",
    "LocalFixMatch": "local_fixmatch",
    "MDHFL": "mdhfl",
    "RSCFed": "rscfed",
    "Ridge": "ridge",
    "SSFL": "ssfl",
    "Statistics": "statistics",
    "Swarm": "swarm",
}
"""The job of each constructor."""
