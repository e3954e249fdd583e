"""Documents that the API answers with: formats, pages, caching, problems."""
