"""The HTML and SVG that reports are made of: elements, colours, charts, and the pages put together from them."""
