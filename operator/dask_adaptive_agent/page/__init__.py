"""The page 'Adaptive' in the scheduler's dashboard. Bokeh is imported only where it is already."""
