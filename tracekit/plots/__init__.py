"""Draw plotly figures from data frames. Nothing is computed and no file is read here.

Names in captures are text: ``labels`` escapes everything that plotly would interpret as markup. plotly is imported when
the first figure is drawn.
"""
