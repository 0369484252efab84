// The exit codes of the weftline command. One table, for the code and for its documentation.

export const exitCodes = {
  success: { code: 0, meaning: 'The command did what it was asked to do.' },
  failure: {
    code: 1,
    meaning:
      'The command failed, its result differs from what was expected, or weftline why found a rank that is silent or overdue; of a failure, the last line of stderr is "weftline: WL_CODE: reason".',
  },
  usage: {
    code: 2,
    meaning:
      'The command line is wrong (unknown option, missing or invalid value, values that do not fit together); nothing was started.',
  },
  rank: { code: '1 to 255', meaning: 'weftline run: the exit code of the first rank that failed.' },
  signal: {
    code: '128 + n',
    meaning:
      'weftline run: signal n stopped the job, such as 130 for Ctrl-C (SIGINT), or ended the first rank that failed, such as 137 for SIGKILL.',
  },
} as const;
