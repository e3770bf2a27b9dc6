"""A local page to look at merging: before, after, and which tokens merged.

``page.py`` is the one file that knows Gradio; everything it shows is made by the small modules beside it.
"""
