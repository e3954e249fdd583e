"""Built libraries on a GPU: captured runs, their memory, arrays of other libraries."""
