"""Pages about a site's own images, which stay at the site."""
