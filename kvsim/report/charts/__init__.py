"""Charts of Results, plans and sweeps: pure functions → Altair. The app shows them, the HTML report draws them (`svg`).

Data is brought to a few hundred points before it is drawn, so that a long run costs a page no more than a short one.
Colours are told apart with any colour vision (kvsim.report.palette). Nothing here is imported before a chart is drawn:
Altair takes a third of a second.
"""
