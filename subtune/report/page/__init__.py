"""An artifact as one HTML page that needs nothing else: its gains, its partition, its roofline, its memory, its search.

In goes what an artifact says of itself (`subtune.report.page.document.page`), out comes text. Charts are Vega-Lite's,
made with Altair and drawn by Vega in the reader's browser; the partition is an SVG, laid out here.
"""
