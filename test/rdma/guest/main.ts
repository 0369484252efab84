// All tests of the guest in one process, because every start of Node takes a second there.
for (const part of ['messages', 'hot-path', 'failures', 'resources', 'doctor']) await import(`./${part}.js`);
