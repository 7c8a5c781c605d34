"""A shop of three services that fail, and come out even; Spark watches its funnel and revenue.

events.py     what the services tell each other     service.py    a service: database and client
orders.py     places orders                         payments.py   charges them, while the bank is up
stock.py      ships them, while there is stock      redrive.py    gives dead letters another chance
funnel.py     Spark: events and money a minute      books.py      what must hold at the end
shop.py       a day of the shop                     __main__.py   all of it, checked
"""
