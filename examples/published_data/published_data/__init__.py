"""Published data sets of skin lesions, CT slices, blood cells and mammograms, for ``grandrounds partition``."""

from published_data import blood, isic, lesions, rsna_ich
from published_data.mammography import collection

__all__ = ["blood", "collection", "isic", "lesions", "rsna_ich"]
