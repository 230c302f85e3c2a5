"""Site data: manifests, readers, partitions, augmentations, the decoded cache, phantoms and the data doctor."""
