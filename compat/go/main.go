// The conformance suite for client-go v2: run.py builds it and runs it, with what is asked in COMPAT_ variables.
package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

func main() {
	rlog.SetLogLevel("warn")
	if err := rlog.SetOutputPath("client.log"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	tests := slices.Concat(transactionTests, timerTests, delayTests, retryTests, sendTests, topicTests, consumeTests,
		orderTests, pullTests, replyTests, refusalTests)
	if !runTests(tests) {
		os.Exit(1)
	}
}
