// Loaded before everything else in the guest, by all processes: the test's own uses one port of the wire, its peers the other.
process.env['UCX_NET_DEVICES'] = process.send === undefined ? 'rxe0:1' : 'rxe1:1';
