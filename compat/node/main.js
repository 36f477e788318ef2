'use strict';

// The conformance suite for ali-ons: run.py runs it, with what is asked in COMPAT_ variables.

const { runTests } = require('./suite');

const tests = [ './retry', './delay', './send', './consume' ].flatMap(part => Object.entries(require(part))
  .map(([ name, found ]) => ({ name, ...(typeof found === 'function' ? { body: found } : found) })));

// The client holds timers and sockets that nothing ends.
runTests(tests).then(passed => process.exit(passed ? 0 : 1), error => {
  console.error(error);
  process.exit(2);
});
