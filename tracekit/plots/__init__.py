"""Draw plotly figures from data frames. The modules of this package neither compute data nor read files.

Names in captures are displayed as text: ``labels`` escapes everything that plotly would interpret as markup. plotly is
imported when the first figure is drawn.
"""
