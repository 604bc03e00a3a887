"""Charts that only the app draws: lessons, the calculator, answers, what a step costs, one request's life. Pure
functions → Altair; they know nothing of Streamlit. Those of Results, plans and sweeps, which the HTML report draws too,
are in kvsim.report.charts, and colours, scales and axes for all of them in its `style`.
"""
