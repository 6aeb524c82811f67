"""A slice of the malformed requests, against a real server on a socket."""

import threading

from bighmm.explore import make_app
from bighmm.explore.serving import _listen, server_of
from fuzz import attack


def test_malformed_requests(opened):
    server = server_of(make_app(opened[:2]))
    with _listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            found = attack(port, 150, 7, thread.is_alive)
        finally:
            server.should_exit = True
            thread.join(30)
    assert found["failures"] == []
    assert {"200", "400", "403", "404", "405", "422"} <= set(found["statuses"])
