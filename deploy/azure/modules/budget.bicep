// A message when what a cluster costs in one subscription nears its budget.
targetScope = 'subscription'

param budgetName string
param groupNames array
param budgetUsd int
param budgetStart string
param notifyEmail string

resource budget 'Microsoft.Consumption/budgets@2023-11-01' = {
  name: budgetName
  properties: {
    category: 'Cost'
    amount: budgetUsd
    timeGrain: 'Monthly'
    timePeriod: {
      startDate: budgetStart
    }
    filter: {
      dimensions: {
        name: 'ResourceGroupName'
        operator: 'In'
        values: groupNames
      }
    }
    notifications: {
      nearlySpent: {
        enabled: true
        operator: 'GreaterThanOrEqualTo'
        threshold: 80
        thresholdType: 'Actual'
        contactEmails: [
          notifyEmail
        ]
      }
      willBeSpent: {
        enabled: true
        operator: 'GreaterThanOrEqualTo'
        threshold: 100
        thresholdType: 'Forecasted'
        contactEmails: [
          notifyEmail
        ]
      }
    }
  }
}
