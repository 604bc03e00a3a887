"""Charts: pure functions of Results (and other plain data) → Altair. They know nothing of Streamlit.

Data is brought to a few hundred points before it is drawn, so that a long run costs the browser no more than a short
one. Colours are those of the HTML report (kvsim.report.palette), told apart with any colour vision.
"""
