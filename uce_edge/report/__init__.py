"""An evaluation as one HTML file that needs nothing else: `uce_edge.report.page.render`."""
