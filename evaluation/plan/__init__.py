"""`hora plan`: what each allocation rule would do on the prompts whose counts were recorded."""
