// The tests of the transport in one process, because every start of Node takes a second in the guest; with the word "all"
// those as well that repeat others with other settings.
for (const part of ['transport-io', 'transport']) await import(`./${part}.js`);
