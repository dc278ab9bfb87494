"""The parts of pages that the viewer and exported pages share: documents, tables, values, the style and the script.

The modules of this package neither read files nor compute data. Pages work without JavaScript, network and server; the
script ``page.js`` adds sorting, searching, and the choice of units and of the color scheme.
"""
