"""Published data sets of skin lesions, CT slices, blood cells, mammograms and photographs, for ``grandrounds partition``."""

from published_data import blood, cifar10, isic, lesions, rsna_ich
from published_data.mammography import collection

__all__ = ["blood", "cifar10", "collection", "isic", "lesions", "rsna_ich"]
